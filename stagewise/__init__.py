"""What surrounds an engine, written once for any stage: it knows stages by their public contract alone."""
