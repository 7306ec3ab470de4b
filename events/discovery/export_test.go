package discovery

import (
	"context"
	"io"
	"os"
	"time"

	"github.com/kvindex/kvindex/events"
)

const (
	MaxFilePods        = maxFilePods
	MaxFileSize        = maxFileSize
	MaxNames           = maxNames
	DefaultDNSInterval = defaultDNSInterval
	DefaultDNSGrace    = defaultDNSGrace
	FileInterval       = fileInterval

	SettleTime   = settleTime
	Patience     = patience
	RestlessTime = restlessTime
	MaxAsking    = maxAsking
)

var Decode = decode

// RunFile is Run of File with another clock, file reader and receiver of faults.
func RunFile(ctx context.Context, path string, now func() time.Time, wait func(context.Context, time.Duration) error, while func(*os.File) io.Reader, report func(error), set func([]events.Pod) error) error {
	f := file{path: path, clock: clock{now: now, wait: wait}, while: while, report: report}
	return f.run(ctx, set)
}

func RunDNS(ctx context.Context, cfg DNSConfig, now func() time.Time, wait func(context.Context, time.Duration) error, limit func(context.Context, time.Duration) (context.Context, context.CancelFunc), report func(error), set func([]events.Pod) error) error {
	cfg, err := cfg.normal()
	if err != nil {
		return err
	}
	d := newDNS(cfg, clock{now, wait, limit})
	d.report = report
	return d.run(ctx, set)
}
