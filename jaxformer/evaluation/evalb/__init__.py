"""EVALB in Python: the scorer of parse trees by Sekine and Collins, 1997 (section 6.3, Table 4).

It compares the brackets of two trees over the same words: a constituent is right if the other tree
has one of the same label over the same words. This is the release of 2006 (Ellis), which knows
``QUOTE_LABEL`` and prints the F-measure; its figures are reproduced, not improved:

* A line is a sentence. A blank line in the test file is skipped (status 2); one with other words
  than the gold line, or with brackets that do not match, is an error (status 1). Both are left out
  of all figures but their own counts.
* Words whose tag is in ``DELETE_LABEL`` are taken out, wherever the tag is wrong in one file only:
  hence "Length unmatch". Brackets in ``DELETE_LABEL``, and those around no words, do not count.
* Labels of brackets end before the first ``-`` or ``=``; tags of words are compared as a whole.
* A gold bracket is matched once: two ``NP`` over the same words need two in the test file.
* Crossing is the number of test brackets that cross a gold bracket.
* A pair of brackets without label, the outermost of the Penn Treebank, is a bracket like any other.

Unlike the C program, there are no limits on the length of words, lines and sentences, though the
time for crossing brackets grows with the square of their number in a line; a line on which it would
hang or read outside its memory is an error like any other.
"""

from jaxformer.evaluation.evalb.brackets import score as score
from jaxformer.evaluation.evalb.parameter_file import COLLINS as COLLINS
from jaxformer.evaluation.evalb.parameter_file import ParameterFile as ParameterFile
from jaxformer.evaluation.evalb.parameter_file import read_parameters as read_parameters
from jaxformer.evaluation.evalb.table import Report as Report
from jaxformer.evaluation.evalb.table import SentenceScores as SentenceScores
from jaxformer.evaluation.evalb.table import Status as Status
from jaxformer.evaluation.evalb.table import Summary as Summary
