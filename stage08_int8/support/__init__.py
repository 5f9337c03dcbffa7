"""What the engine needs and its chapter does not teach. Nothing here imports a file of the directory above."""
