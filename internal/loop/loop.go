package loop

import (
	"context"
	"time"
)

// Func brings the object named by key closer to its declared state. It must be safe to repeat and must
// read that state itself: a key says that something may have changed, never what. It returns how long to
// wait before it is called again without a change (0 = not at all).
type Func[K comparable] func(ctx context.Context, key K) (wait time.Duration, err error)
