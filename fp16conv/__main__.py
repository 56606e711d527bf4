"""`python -m fp16conv` is the command line."""

from fp16conv.cli import main

if __name__ == "__main__":
    main()
