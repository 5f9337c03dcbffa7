"""What measures: workloads, engines, peers, reports, plots, probes of the machine, and the results."""
