module github.com/kvindex/kvindex/bench

go 1.25

require github.com/kvindex/kvindex v0.0.0

require (
	github.com/klauspost/cpuid/v2 v2.2.10 // indirect
	github.com/zeebo/xxh3 v1.1.0 // indirect
	golang.org/x/sync v0.14.0 // indirect
	golang.org/x/sys v0.30.0 // indirect
	golang.org/x/text v0.25.0 // indirect
)
