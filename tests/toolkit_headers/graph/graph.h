// ge: graphs of operators.
#pragma once

#include "../graph_types.h"
