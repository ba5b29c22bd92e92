"""`halfmq admin`: what operators see and do, through a broker; a module per noun, on a few that all of them use."""
