from stage02_static_batch.__main__ import main

if __name__ == "__main__":
    raise SystemExit(main())
