// In the place of NVIDIA's: see emulator.h.
#include "emulator.h"
