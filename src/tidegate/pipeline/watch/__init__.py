"""`tidegate watch`: a live usage record, followed while it is written (docs/watch.md, decision 0071)."""
