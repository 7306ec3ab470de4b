module github.com/kvindex/kvindex/bench

go 1.25

require (
	github.com/elastic/go-freelru v0.16.0
	github.com/hashicorp/golang-lru/v2 v2.0.7
	github.com/kvindex/kvindex v0.0.0
	github.com/sugarme/tokenizer v0.3.0
)

require (
	github.com/klauspost/cpuid/v2 v2.2.10 // indirect
	github.com/mitchellh/colorstring v0.0.0-20190213212951-d06e56a500db // indirect
	github.com/rivo/uniseg v0.4.7 // indirect
	github.com/schollz/progressbar/v2 v2.15.0 // indirect
	github.com/sugarme/regexpset v0.0.0-20200920021344-4d4ec8eaf93c // indirect
	github.com/zeebo/xxh3 v1.1.0 // indirect
	golang.org/x/sys v0.30.0 // indirect
	golang.org/x/text v0.25.0 // indirect
)
