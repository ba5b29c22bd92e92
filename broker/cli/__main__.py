"""`python -m broker.cli` is the command `halfmq`."""

from broker.cli import main

if __name__ == "__main__":
    main()
