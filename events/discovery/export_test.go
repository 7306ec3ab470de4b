package discovery

import (
	"context"
	"io"
	"os"
	"time"

	"github.com/kvindex/kvindex/events"
)

const (
	MaxFilePods         = maxFilePods
	MaxFileSize         = maxFileSize
	MaxNames            = maxNames
	DefaultDNSInterval  = defaultDNSInterval
	DefaultDNSGrace     = defaultDNSGrace
	DefaultFileInterval = defaultFileInterval

	SettleTime   = settleTime
	Patience     = patience
	RestlessTime = restlessTime
	MaxAsking    = maxAsking
)

var Decode = decode

// RunFile is Run of File with another clock, and with another reader of the file.
func RunFile(ctx context.Context, path string, cfg FileConfig, now func() time.Time, wait func(context.Context, time.Duration) error, while func(*os.File) io.Reader, set func([]events.Pod) error) error {
	f := file{path: path, cfg: cfg, clock: clock{now: now, wait: wait}, while: while}
	return f.run(ctx, set)
}

// RunDNS is Run of DNS with another clock.
func RunDNS(ctx context.Context, cfg DNSConfig, now func() time.Time, wait func(context.Context, time.Duration) error, limit func(context.Context, time.Duration) (context.Context, context.CancelFunc), set func([]events.Pod) error) error {
	cfg, err := cfg.normal()
	if err != nil {
		return err
	}
	return newDNS(cfg, clock{now, wait, limit}).run(ctx, set)
}
