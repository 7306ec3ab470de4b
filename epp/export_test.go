package epp

import extproc "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"

// Process is the method of the service, without a network.
func Process(cfg Config, srv extproc.ExternalProcessor_ProcessServer) error {
	return (&processor{Config: cfg}).Process(srv)
}
