"""The sweep system: command line, driver, results, tracking, reports."""
