import sys

if __name__ == "__main__":
    try:
        from stage05_paged.cli import main

        if "--ray" in sys.argv:  # a batch run on many machines
            from stagewise.scaleout.cli import stage05 as main
    except KeyboardInterrupt:  # while torch is being loaded, which takes a second
        sys.exit(130)
    sys.exit(main())
