package otel

import (
	_ "github.com/kvindex/kvindex"
	_ "go.opentelemetry.io/otel/attribute"
	_ "go.opentelemetry.io/otel/metric"
	_ "go.opentelemetry.io/otel/trace"
)
