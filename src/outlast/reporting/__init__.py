"""The report: run folders in; a page, tables, figures and machine-readable numbers out."""
