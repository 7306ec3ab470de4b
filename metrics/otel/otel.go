package otel
import (
 _ "go.opentelemetry.io/otel/attribute"
 _ "go.opentelemetry.io/otel/metric"
 _ "go.opentelemetry.io/otel/trace"
 _ "github.com/kvindex/kvindex"
)
