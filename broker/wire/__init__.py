"""What every protocol on gRPC shares: how calls come in, what they may take, how errors and streams go out."""
