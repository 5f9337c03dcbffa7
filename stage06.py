import sys

if __name__ == "__main__":
    try:
        from stage06_fast.cli import main

        if "--ray" in sys.argv:  # a batch run on many machines
            from stagewise.scaleout.cli import stage06 as main
    except KeyboardInterrupt:  # while torch is being loaded, which takes a second
        sys.exit(130)
    sys.exit(main())
