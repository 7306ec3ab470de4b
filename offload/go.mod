module github.com/kvindex/kvindex/offload

go 1.25.0

require (
	github.com/kvindex/kvindex v0.0.0
	github.com/redis/go-redis/v9 v9.22.0
	github.com/zeebo/xxh3 v1.1.0
	golang.org/x/sys v0.38.0
)

require (
	github.com/cespare/xxhash/v2 v2.3.0 // indirect
	github.com/klauspost/cpuid/v2 v2.2.10 // indirect
	go.uber.org/atomic v1.11.0 // indirect
)
