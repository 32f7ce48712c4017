"""EVALB in Python: Sekine and Collins' scorer of parse trees, 1997 (section 6.3, Table 4).

EVALB compares the brackets of two trees over the same words. A constituent is correct if the other
tree has one with the same label over the same words. We reproduce the figures of the release of
2006 (Ellis), which supports ``QUOTE_LABEL`` and prints the F-measure:

* A line is a sentence. A blank line in the test file is skipped (status 2). A line whose words
  differ from the gold line, or whose brackets do not match, is an error (status 1). Both count only
  in the numbers of skipped and error sentences.
* Words whose tag is in ``DELETE_LABEL`` are deleted from each file separately; if a tag is wrong in
  one file, the lengths differ ("Length unmatch"). Brackets with a label in ``DELETE_LABEL``, and
  empty brackets, do not count.
* Labels of brackets end before the first ``-`` or ``=``; tags of words are compared in full.
* A gold bracket is matched once: two ``NP`` over the same words need two in the test file.
* Crossing is the number of test brackets that cross a gold bracket.
* Brackets without a label, such as the outermost ones in the Penn Treebank, count.

Unlike in the C program, the length of words, lines and sentences is unlimited, though the time for
crossing brackets is quadratic in their number per line. Lines on which the C program would hang or
read out of bounds are errors.
"""

from jaxformer.evaluation.evalb.brackets import score as score
from jaxformer.evaluation.evalb.parameter_file import COLLINS as COLLINS
from jaxformer.evaluation.evalb.parameter_file import ParameterFile as ParameterFile
from jaxformer.evaluation.evalb.parameter_file import read_parameters as read_parameters
