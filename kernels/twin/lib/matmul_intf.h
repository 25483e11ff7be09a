// The toolkit's include name for the Matmul API.
#pragma once

#include "../twin/matmul.h"
