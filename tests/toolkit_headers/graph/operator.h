// ge: operators as plugins see them.
#pragma once

#include "../graph_types.h"
