package kvindex_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net/url"
	"strconv"

	"github.com/kvindex/kvindex"
	"github.com/kvindex/kvindex/events"
	"github.com/kvindex/kvindex/kvindextest"
)

// A Fleet follows pods for an Indexer. This program sets the pods itself; files, DNS and Kubernetes
// are sources that are passed to Run.
func Example_fleet() {
	engine, err := kvindextest.NewEngine(kvindextest.EngineConfig{Pod: "pod-a", Model: "llama"})
	if err != nil {
		log.Fatal(err)
	}
	defer engine.Close()
	index, err := kvindex.New()
	if err != nil {
		log.Fatal(err)
	}
	defer index.Close()

	live, removed := make(chan bool), make(chan bool)
	fleet, err := events.NewFleet(index.Sink(), events.FleetConfig{
		OnError: func(err error) { log.Print(err) },
		OnChange: func(c events.FleetChange) { // by one goroutine, in order
			switch c.Kind {
			case "link changed":
				if c.To == "live" {
					fmt.Println(c.Pod.ID, "is live")
					live <- true
				}
			case "removed":
				fmt.Println(c.Pod.ID, c.Kind)
				removed <- true
			default:
				fmt.Println(c.Pod.ID, c.Kind, "by", c.Source)
			}
		},
	})
	if err != nil {
		log.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error)
	go func() { ended <- fleet.Run(ctx) }()

	at, err := url.Parse(engine.Endpoint())
	if err != nil {
		log.Fatal(err)
	}
	port, err := strconv.Atoi(at.Port())
	if err != nil {
		log.Fatal(err)
	}
	pods := []events.Pod{{ID: "pod-a", Model: "llama", Host: at.Hostname(), Port: port}}
	if err := fleet.Set("table", pods); err != nil { // all pods of the table
		log.Fatal(err)
	}
	<-live
	if err := fleet.Set("table", nil); err != nil { // the table is empty now
		log.Fatal(err)
	}
	<-removed
	fmt.Println(len(index.Pods(nil)), "pods are known")

	cancel()
	fmt.Println(errors.Is(<-ended, context.Canceled))
	// Output:
	// pod-a added by table
	// pod-a is live
	// pod-a removed
	// 0 pods are known
	// true
}
