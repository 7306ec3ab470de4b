package discovery_test

import (
	"context"
	"fmt"
	"log"
	"os"
	"path/filepath"

	"github.com/kvindex/kvindex/events"
	"github.com/kvindex/kvindex/events/discovery"
)

func ExampleFile() {
	folder, err := os.MkdirTemp("", "pods")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(folder)
	path := filepath.Join(folder, "pods.json")
	content := `[{"id": "vllm-0", "model": "llama", "host": "10.0.0.7", "ranks": 2}]`
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		log.Fatal(err)
	}

	pods := discovery.File(path)
	// A Fleet calls Run: see events.Fleet.Run.
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	pods.Run(ctx, func(pods []events.Pod) error {
		for _, p := range pods {
			fmt.Println(p.ID, p.Model, p.Host, p.Ranks)
		}
		cancel()
		return nil
	})
	// Output: vllm-0 llama 10.0.0.7 2
}

func ExampleDNS() {
	service, err := discovery.DNS(discovery.DNSConfig{
		Name: "vllm.default.svc.cluster.local",
		Pod:  events.Pod{Model: "llama", Port: 5557, Ranks: 2},
	})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(service.Name) // for events.Fleet.Run
	// Output: dns:vllm.default.svc.cluster.local
}
