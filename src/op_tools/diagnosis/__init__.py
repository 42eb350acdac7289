"""From a symptom to the operator: what is found out by several runs, or by two recorded ones."""
