# The one list of public names: type checkers read it, and __init__.py imports each from where this
# file does, when it is first used.
from jaxformer.search.algorithm import Algorithm as Algorithm
from jaxformer.search.algorithm import BeamSearch as BeamSearch
from jaxformer.search.algorithm import Sampling as Sampling
from jaxformer.search.algorithm import beam_search as beam_search
from jaxformer.search.algorithm import sample as sample
from jaxformer.search.constraints import ForcedPrefix as ForcedPrefix
from jaxformer.search.constraints import MinLength as MinLength
from jaxformer.search.constraints import NoRepeatNgram as NoRepeatNgram
from jaxformer.search.constraints import SearchContext as SearchContext
from jaxformer.search.ensembles import ensemble as ensemble
from jaxformer.search.penalties import gnmt_penalty as gnmt_penalty
from jaxformer.search.settings import Constraint as Constraint
from jaxformer.search.state import BeamResult as BeamResult
from jaxformer.search.state import take_sentences as take_sentences
from jaxformer.search.step_loop import PrefillFn as PrefillFn
from jaxformer.search.step_loop import StepFn as StepFn
