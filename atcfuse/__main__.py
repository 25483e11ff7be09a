"""`python -m atcfuse` is `atcfuse`."""

from atcfuse.cli import main

if __name__ == "__main__":
    main()
