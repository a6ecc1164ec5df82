"""Model compression: pruning, low rank, int8 quantization, distillation, and what each costs."""
