if __name__ == "__main__":
    from stagewise.__main__ import run_stage

    run_stage(int(__spec__.parent.removeprefix("stage")))
