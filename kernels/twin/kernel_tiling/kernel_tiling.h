// The toolkit's include name for TCubeTiling, for tiling headers that host and kernel share.
#pragma once

#include "../twin/tiling_types.h"
