"""OpTimeMeasure: the time of each operator, forward and backward."""
