"""Section 5 for any task: loss, optimizer, one data-parallel step, the loop, and its reports."""
