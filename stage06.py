import functools
import sys

if __name__ == "__main__":
    try:
        from stage06_fast.cli import main

        if "--ray" in sys.argv:  # a batch run on many machines
            from scaleout.cli import main as run_on_cluster

            main = functools.partial(run_on_cluster, "stage06")
    except KeyboardInterrupt:  # while torch is being loaded, which takes a second
        sys.exit(130)
    sys.exit(main())
