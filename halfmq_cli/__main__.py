"""`python -m halfmq_cli` is the command `halfmq`."""

from halfmq_cli import main

if __name__ == "__main__":
    main()
