package openloop_test

import (
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kvindex/kvindex/internal/openloop"
)

func TestFull(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		if each := openloop.Full(80, func() { time.Sleep(8 * time.Millisecond) }); each != time.Millisecond {
			t.Errorf("eight clients that take 8 ms for each: %v a request", each)
		}
	})
}

// A stalled server delays all requests that are due meanwhile.
func TestHalf(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var asked, others atomic.Int64
		base := func() { asked.Add(1); time.Sleep(8 * time.Millisecond) }
		began := time.Now()
		p99, ofOther, ratio := openloop.Half(3, 200, base, func() {
			// Of each 200 requests ten wait for the stall.
			if n := others.Add(1) % 200; n > 0 && n <= 10 {
				time.Sleep(80 * time.Millisecond)
			}
		})
		if p99 != 8*time.Millisecond || ofOther != 80*time.Millisecond || ratio != 10 || asked.Load() != 1200 || others.Load() != 600 {
			t.Errorf("%v, %v, %v; %d and %d requests", p99, ofOther, ratio, asked.Load(), others.Load())
		}
		// 200 requests at full load take 200 ms, and at half of it 400 ms.
		if took := time.Since(began); took < 3*time.Second || took > 3100*time.Millisecond {
			t.Errorf("three rounds took %v", took)
		}
	})
}
