// ge: operators made by type.
#pragma once

#include "../graph_types.h"
