"""Models: a layout line becomes one `nn.Module` whose sublayers stand behind gates."""

from outlast.models.build import build_model
from outlast.models.model import Model, Sublayer

__all__ = ["Model", "Sublayer", "build_model"]
