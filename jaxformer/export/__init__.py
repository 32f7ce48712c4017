"""Export of trained models to other systems: StableHLO, CTranslate2, Marian and safetensors."""
