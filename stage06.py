from stage06_fast.__main__ import main

if __name__ == "__main__":
    raise SystemExit(main())
