"""Section 5: loss, optimizer, one data-parallel step, the loop around it, and its reports."""
