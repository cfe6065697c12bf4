"""`python -m suite`: the command line."""

from suite.cli import main

if __name__ == "__main__":
    main()
