"""`python -m stage03`: the command line of stage 3. pyproject.toml installs this one package as stage01, stage02 and so
on."""
