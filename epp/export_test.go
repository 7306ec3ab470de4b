package epp

import (
	"fmt"

	extproc "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
)

// Process is the method of the service, without a network.
func Process(cfg Config, srv extproc.ExternalProcessor_ProcessServer) error {
	p := &processor{Config: cfg}
	err := p.Process(srv)
	if n := p.inMemory.Load(); n != 0 {
		return fmt.Errorf("%d bytes are in memory at the end, after %w", n, err)
	}
	return err
}
