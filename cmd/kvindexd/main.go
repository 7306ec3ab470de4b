// Kvindexd is the service for gateways that do not embed kvindex.
package main

import (
	_ "github.com/kvindex/kvindex"
	_ "github.com/kvindex/kvindex/index/redisindex"
	_ "github.com/kvindex/kvindex/metrics/prometheus"
	_ "github.com/prometheus/client_golang/prometheus"
	_ "github.com/redis/go-redis/v9"
)

func main() {}
