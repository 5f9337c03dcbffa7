import sys

if __name__ == "__main__":
    try:
        from stage02_static_batch.cli import main
    except KeyboardInterrupt:  # while torch is being loaded, which takes a second
        sys.exit(130)
    sys.exit(main())
