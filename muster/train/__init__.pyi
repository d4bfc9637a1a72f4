# The public names of muster.train, the only list of them. Each is imported on its first use.

from muster.train.checkpoint.config import UnfitEnvironmentError as UnfitEnvironmentError
from muster.train.checkpoint.fences import StaleFenceError as StaleFenceError
from muster.train.checkpoint.keys import MissingKeyError as MissingKeyError
from muster.train.data.dataset_manifest import DatasetError as DatasetError
from muster.train.data.dataset_paths import dataset_path as dataset_path
from muster.train.data.datasets import Dataset as Dataset
from muster.train.data.datasets import dataset as dataset
from muster.train.data.streams import SampleStream as SampleStream
from muster.train.parallel.meshes import mesh as mesh
from muster.train.parallel.shards import CoverageError as CoverageError
from muster.train.report.flops import Attention as Attention
from muster.train.report.flops import ModelShape as ModelShape
from muster.train.report.flops import Recompute as Recompute
from muster.train.report.flops import Work as Work
from muster.train.report.flops import active_params as active_params
from muster.train.report.flops import packed_sequence as packed_sequence
from muster.train.report.learning_rates import TunedFor as TunedFor
from muster.train.report.peaks import Dtype as Dtype
from muster.train.runtime.run import Run as Run
from muster.train.runtime.startup import start as start
